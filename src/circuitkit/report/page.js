const field=document.querySelector('#find'),said=document.querySelector('#found');
field.addEventListener('input',()=>{const q=field.value.trim().toLowerCase();let n=0;
document.querySelectorAll('[data-head]').forEach(e=>{const on=!q||e.dataset.head.toLowerCase().includes(q);e.hidden=!on;n+=on&&e.localName==='article'});
said.textContent=q?n+' heads':''});
addEventListener('hashchange',()=>{const e=document.getElementById(location.hash.slice(1));if(e){const d=e.querySelector('details');if(d)d.open=true}});
