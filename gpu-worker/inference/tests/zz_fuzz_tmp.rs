use std::path::{Path,PathBuf};
use inference::model::{self, WeightName, Weights};
use inference::text::Specials;
fn data(n:&str)->PathBuf{Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(n)}
struct R(u64); impl R{fn n(&mut self)->u64{self.0^=self.0<<13;self.0^=self.0>>7;self.0^=self.0<<17;self.0} fn b(&mut self,m:usize)->usize{(self.n()%(m.max(1) as u64)) as usize}}
fn mutate(r:&mut R,b:&[u8],hdr:usize,json:bool)->Vec<u8>{let mut v=b.to_vec(); for _ in 0..1+r.b(4){ let h=hdr.min(v.len()).max(1); let at=r.b(h); match r.b(7){
 0=>{v[at]^=1<<r.b(8);} 1=>{v[at]=r.n() as u8;} 2=>{let vals=[0u64,1,u64::MAX,1<<63,1<<32,(1<<31)-1,255,65536]; let x=vals[r.b(8)].to_le_bytes(); for i in 0..(1+r.b(8)){if at+i<v.len(){v[at+i]=x[i];}}}
 3=>{let l=r.b(40); let e=(at+l).min(v.len()); v.drain(at..e); if v.is_empty(){v.push(0)}} 4=>{let l=r.b(60); let s=r.b(h); let c=v[s..(s+l).min(v.len())].to_vec(); v.splice(at..at,c);} 
 5 if json=>{let t:[&[u8];14]=[b"null",b"-1",b"1e999",b"18446744073709551615",b"[]",b"{}",b"\"\"",b"true",b"4294967295",b"\"x y\"",b"[[",b"\"\\u0000\"",b"0",b"1048575"]; let x=t[r.b(14)]; 
   let mut e=at; while e<v.len()&&!b",:[]{}".contains(&v[e]){e+=1} v.splice(at..e,x.iter().copied());}
 _=>{let c=r.b(h); if r.b(10)==0 {v.truncate(c.max(1));} else {v[at]=v[c];}} } } v}
#[test] fn fuzz(){
 let secs:u64=std::env::var("FUZZ_S").unwrap().parse().unwrap(); let seed:u64=std::env::var("FUZZ_SEED").unwrap().parse().unwrap();
 let t0=std::time::Instant::now(); let mut r=R(seed*7919+88172645463325252); let g=std::fs::read(data("tiny.gguf")).unwrap();
 let names=["model.safetensors","config.json","tokenizer.json","tokenizer_config.json"]; let files:Vec<Vec<u8>>=names.iter().map(|n|std::fs::read(data("tiny").join(n)).unwrap()).collect();
 let dir=tempfile::tempdir().unwrap(); for (n,f) in names.iter().zip(&files){std::fs::write(dir.path().join(n),f).unwrap();}
 let gf=dir.path().join("a.gguf"); std::fs::create_dir_all("/tmp/ns/crash").unwrap();
 std::panic::set_hook(Box::new(|i|{eprintln!("PANIC {} {}", i.location().unwrap(), i.payload_as_str().unwrap_or("").chars().take(150).collect::<String>());}));
 let (mut n,mut ok,mut bad)=(0u64,0u64,0u64);
 while t0.elapsed().as_secs()<secs { n+=1; let k=r.b(6); 
  let (path,bytes,name)= if k<2 {let m=mutate(&mut r,&g,3600,false); std::fs::write(&gf,&m).unwrap(); (gf.clone(),m,"a.gguf".to_string())} else {let i=k-2; let hdr=if i==0{1300}else{files[i].len()}; let m=mutate(&mut r,&files[i],hdr,true); std::fs::write(dir.path().join(names[i]),&m).unwrap(); (dir.path().to_path_buf(),m,names[i].to_string())};
  let res=std::panic::catch_unwind(||{ if let Ok(m)=model::open(&path){ for w in [WeightName::Embedding,WeightName::Qkv(0),WeightName::GateUp(0),WeightName::FinalNorm,WeightName::Down(0)]{ let s=m.source(w).unwrap(); if s.rows()*s.cols()<1<<22 {let mut o=vec![0.0;s.rows()*s.cols()]; s.read_rows(0,&mut o).unwrap();} }
    if let Some(t)=&m.tokenizer{ for x in ["the <|im_end|> in\n\n  12 é\u{1F600}<tool>","","  "]{ for sp in [Specials::Parse,Specials::Plain]{let i=t.encode(x,sp); t.decode(&i); } t.encode_guarded(x,&[4]);} let all:Vec<u32>=(0..t.vocab_size().min(500) as u32).collect(); t.decode(&all);
      if let Some(c)=&m.chat_template{ let _=c.encode(t,&serde_json::json!([{"role":"user","content":"hi <|im_end|> "}]),None,&Default::default(),0); } } true } else {false}});
  match res{Ok(o)=>ok+=o as u64,Err(_)=>{bad+=1; std::fs::write(format!("/tmp/ns/crash/{seed}-{n}-{name}"),&bytes).unwrap();}}
  if k>=2 {let i=k-2; std::fs::write(dir.path().join(names[i]),&files[i]).unwrap();}
 }
 eprintln!("runs {n} opened {ok} panics {bad}");
}
